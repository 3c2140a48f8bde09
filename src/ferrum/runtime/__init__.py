"""Loading of models and execution of steps: from a checkpoint on disk to an executor."""

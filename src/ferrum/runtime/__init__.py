"""From a checkpoint on disk to an executor that runs steps."""

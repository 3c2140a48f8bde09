"""Steps of a model: its network on kernels, tables, passes and results; and the loading of models from sources."""

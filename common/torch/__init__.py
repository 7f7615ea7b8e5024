"""PyTorch: modules as models, data as tensors, layers and metrics."""

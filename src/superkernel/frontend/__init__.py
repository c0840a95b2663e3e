"""frontend: a torch.compile graph with marked scopes comes in, its segments run as super kernels."""

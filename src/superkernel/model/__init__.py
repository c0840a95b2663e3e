"""model: what the user says, as data: options, kernels, ops and events; the graph they form. No torch, no target."""

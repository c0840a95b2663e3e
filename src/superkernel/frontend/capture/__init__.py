"""frontend.capture: an fx graph in; its parts, cut by scope and by what can be fused, out."""

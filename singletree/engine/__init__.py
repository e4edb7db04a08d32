"""vLLM, in an environment of its own: install it, start it with the settings that training needs, check that it has them."""

"""The agent for JAX."""

"""What becomes of the gradients of a step before they move the weights."""

"""The arithmetic of PPO: tensors and floats in, tensors out. Knows no device, no text and no model."""

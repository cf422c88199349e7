"""Policy, critic, reference: how they are loaded, adapted, shared and run."""

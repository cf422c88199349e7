"""The Python client and the `ppo` command. Needs pydantic, httpx, rich and typer; imports only the spec and the views."""

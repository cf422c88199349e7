"""The Python client and the `ppo` command. Needs pydantic, httpx, rich and typer, and of the service only its views."""

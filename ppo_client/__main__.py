"""`python -m ppo_client`: the `ppo` command."""

from __future__ import annotations

from ppo_client.cli import main

if __name__ == "__main__":
    main()

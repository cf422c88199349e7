"""Submit a spec, print every step as it comes, and download the trained model.

python examples/submit_and_watch.py examples/specs/austen-positive.json --url http://127.0.0.1:8080
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ppo_client.client import PPOClient
from ppo_client.updates import End, Step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--url", help="default: PPO_URL, else http://127.0.0.1:8080")
    arguments = parser.parse_args()

    with PPOClient(arguments.url) as client:
        job = client.submit(json.loads(arguments.spec.read_text()))
        print(f"submitted {job.id}")
        for update in client.watch(job.id):
            if isinstance(update, Step):
                print(f"step {update.step}: reward {update.metrics['env/reward_mean']:.3f}")
            elif isinstance(update, End):
                print(f"{update.job.state}")
                job = update.job
        if job.error is not None:
            raise SystemExit(job.error.message)
        folder = Path(f"{job.id}-model")
        checkpoint = client.download(job.id, folder)
        print(f"step {checkpoint.step}'s model is in {folder / 'model'}")


if __name__ == "__main__":
    main()

"""Submit a spec and follow it over gRPC. In other languages: generate a client from proto/ppo/v1, or use reflection.

python examples/grpc_submit.py examples/specs/austen-positive.json --address 127.0.0.1:50051
"""

from __future__ import annotations

import argparse
import json
import uuid
from pathlib import Path

import grpc
from google.protobuf.json_format import ParseDict

from api.rpc.v1 import job_service_pb2 as pb
from api.rpc.v1.job_service_pb2_grpc import JobServiceStub


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--address", default="127.0.0.1:50051")
    arguments = parser.parse_args()

    # A spec's JSON and its message have the same shape.
    spec = ParseDict(json.loads(arguments.spec.read_text()), pb.JobSpec())
    with grpc.insecure_channel(arguments.address) as channel:
        service = JobServiceStub(channel)
        try:
            job = service.CreateJob(pb.CreateJobRequest(spec=spec, request_id=str(uuid.uuid4()))).job
            print(f"submitted {job.id}", flush=True)
            follow(service, job.id)
        except grpc.RpcError as error:
            raise SystemExit(f"{error.code().name}: {error.details()}") from None


def follow(service: JobServiceStub, job_id: str) -> None:
    """Print steps until the job has ended."""
    for update in service.WatchJob(pb.WatchJobRequest(job_id=job_id)):
        if update.HasField("step"):
            print(f"step {update.step.step}: reward {update.step.metrics['env/reward_mean']:.3f}", flush=True)
        if update.terminal:
            print(pb.JobState.Name(update.job.state).removeprefix("JOB_STATE_").lower())


if __name__ == "__main__":
    main()

"""CatalogueService: what this service can do, and what its refusals mean."""

# ruff: noqa: N802, ARG002 (names and parameters are those of the generated base class)

from __future__ import annotations

from typing import Any

from api import catalogue
from api.context import Context
from api.rpc.v1 import catalogue_service_pb2 as pb
from api.rpc.v1.catalogue_service_pb2_grpc import CatalogueServiceServicer
from jobs.spec import json_schema


class CatalogueServicer(CatalogueServiceServicer):
    """CatalogueService over one context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Any) -> pb.GetCapabilitiesResponse:
        """Tell rules, presets, metrics, states and limits."""
        found = catalogue.capabilities(self._context.settings)
        return pb.GetCapabilitiesResponse(
            rules=[pb.RewardRule(**rule.model_dump()) for rule in found.rules],
            presets=[pb.Preset(**preset.model_dump()) for preset in found.presets],
            metrics=[pb.MetricInfo(**metric.model_dump()) for metric in found.metrics],
            states=[pb.StateInfo(**state.model_dump()) for state in found.states],
            limits=pb.ServiceLimits(**found.limits.model_dump()),
        )

    async def GetJobSchema(self, request: pb.GetJobSchemaRequest, context: Any) -> pb.GetJobSchemaResponse:
        """Tell the schema of a spec."""
        answer = pb.GetJobSchemaResponse()
        answer.schema.update(json_schema())
        return answer

    async def ListProblems(self, request: pb.ListProblemsRequest, context: Any) -> pb.ListProblemsResponse:
        """Tell what every refusal means."""
        return pb.ListProblemsResponse(
            problems=[pb.ProblemKind(**kind.model_dump()) for kind in catalogue.problem_kinds()]
        )

    async def GetProblem(self, request: pb.GetProblemRequest, context: Any) -> pb.GetProblemResponse:
        """Tell what one refusal means."""
        return pb.GetProblemResponse(problem=pb.ProblemKind(**catalogue.problem_kind(request.code).model_dump()))

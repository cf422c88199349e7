"""The dashboard of one training run: is it learning, is it still itself, is each update sane, what does it cost."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Panel, Query, Row, variable
from ppo_engine.stats import METRICS, SCALARS, Kind, prometheus_name

CHOSEN = '{job_id="$job_id"}'


def q(key: str, legend: str = "") -> Query:
    """The metric of a key of ppo_engine.stats, for the chosen job."""
    return Query(expr=exported(key), legend=legend or key)


def exported(key: str) -> str:
    """The selector of a key's series; a key that no step reports is a KeyError."""
    return SCALARS[key].prometheus_name + CHOSEN


def spread(mean: str, deviation: str) -> list[Query]:
    """A mean, and the edges of mean +- standard deviation."""
    centre, width = exported(mean), exported(deviation)
    return [
        Query(expr=centre, legend="mean"),
        Query(expr=f"{centre} + {width}", legend="mean + std"),
        Query(expr=f"{centre} - {width}", legend="mean - std"),
    ]


BAND = ("mean - std", "mean + std")

LEARNING = Row(
    title="Is it learning?",
    panels=[
        Panel(
            title="Reward",
            unit="none",
            read="Raw reward before any scaling, mean and standard deviation. It should rise. If it rises while the KL "
            "runs away or the responses change their length, the policy is gaming the reward: read the samples.",
            queries=spread("env/reward_mean", "env/reward_std"),
            band=BAND,
        ),
        Panel(
            title="Reward components",
            unit="none",
            read="Mean raw score of each term of the reward. One term rising while the others fall shows what the "
            "policy trades away.",
            queries=[Query(expr=prometheus_name("env/reward/x_mean") + CHOSEN, legend="{{component}}")],
        ),
        Panel(
            title="Responses without a score",
            unit="percentunit",
            read="Share of responses that a reward component could not score: a reward server that fails, a text that "
            "cannot be parsed. 0 is normal; what is learned from the rest is biased.",
            queries=[q("env/reward_errors", "errors")],
            lowest=0,
            highest=1,
        ),
        Panel(
            title="Score that the optimiser sees",
            unit="none",
            read="After scaling and clipping. `rlhf_reward` is the score minus the KL penalty of the whole response: "
            "what PPO maximises. A flat rlhf_reward under a rising score means the penalty eats the gain.",
            queries=[
                q("ppo/mean_scores"),
                q("ppo/std_scores"),
                q("objective/rlhf_reward"),
                q("ppo/mean_non_score_reward"),
            ],
        ),
    ],
)

ITSELF = Row(
    title="Is it still itself?",
    panels=[
        Panel(
            title="KL from the reference",
            unit="suffix: nats/seq",
            read="Should stay positive and bounded. Running away: raise kl.init_kl_coef or lower the learning rate. "
            "Negative: the distribution that is sampled is not the one that is scored.",
            queries=[q("objective/kl")],
        ),
        Panel(
            title="KL coefficient",
            unit="none",
            read="The controller raises it while the KL is above its target. It usually rises before numbers get "
            "unstable: a steep climb is an early warning.",
            queries=[q("objective/kl_coef")],
        ),
        Panel(
            title="Entropy per token",
            unit="suffix: nats",
            read="Falls slowly in a healthy run. A collapse to 0 means one answer to everything: raise "
            "ppo.entropy_coef, lower the learning rate, or strengthen the KL penalty.",
            queries=[q("ppo/policy/entropy")],
            lowest=0,
        ),
        Panel(
            title="Entropy per response",
            unit="suffix: nats/seq",
            read="Minus the summed log-probabilities of the sampled tokens: moves with their length too.",
            queries=[q("objective/entropy")],
        ),
        Panel(
            title="Perplexity of the samples",
            unit="none",
            read="Under the policy and under the reference. A rising reference perplexity means text that the original "
            "model finds strange: drift that reward and losses do not show.",
            queries=[q("objective/perplexity", "policy"), q("objective/ref_perplexity", "reference")],
            log_scale=True,
        ),
        Panel(
            title="Sampler against scorer",
            unit="suffix: nats/token",
            read="Mean absolute difference of the log-probabilities at sampling and at scoring. Should be near 0 "
            "(rounding); anything larger makes the KL and the ratio wrong.",
            queries=[q("sampling/logprob_mismatch")],
            lowest=0,
        ),
    ],
)

UPDATE = Row(
    title="Is each update sane?",
    panels=[
        Panel(
            title="Policy loss",
            unit="none",
            read="Small and around 0; its level says little. A jump does.",
            queries=[
                q("ppo/loss/policy", "policy"),
                q("ppo/loss/entropy", "entropy term"),
                q("ppo/loss/kl", "KL term"),
                q("ppo/loss/total", "total"),
            ],
        ),
        Panel(
            title="Value loss",
            unit="none",
            read="Falls, then stays. A spike or a gap (not a number) is the first sign that things go wrong.",
            queries=[q("ppo/loss/value"), q("ppo/val/error", "ppo/val/error (unclipped)")],
            lowest=0,
        ),
        Panel(
            title="Clipped fractions",
            unit="percentunit",
            read="Share of tokens whose policy ratio, or value, hit its clip. Policy 5-25 % is usual; steadily above "
            "30 % means updates are too large: lower the learning rate or ppo_epochs. At 0 nothing is learned.",
            queries=[q("ppo/policy/clipfrac", "policy"), q("ppo/val/clipfrac", "value")],
            lowest=0,
            highest=1,
        ),
        Panel(
            title="Change of the policy in a step",
            unit="suffix: nats/token",
            read="How far the updates of one step moved the policy. approxkl above about 0.1 is far; set ppo.target_kl "
            "to stop epochs early.",
            queries=[q("ppo/policy/approxkl"), q("ppo/policy/policykl")],
        ),
        Panel(
            title="Largest probability ratio",
            unit="none",
            read="1 is the base line. Hundreds: a token became hundreds of times likelier within one step, "
            "over-optimisation and collapse follow. Lower the learning rate.",
            queries=[q("ppo/policy/ratio_max")],
            log_scale=True,
        ),
        Panel(
            title="Gradient norm",
            unit="none",
            read="Before clipping. A norm that grows by orders of magnitude asks for optimizer.max_grad_norm.",
            queries=[q("ppo/grad_norm")],
            log_scale=True,
        ),
        Panel(
            title="Skipped updates and epochs run",
            unit="none",
            read="Skipped: minibatches whose mean ratio was above ppo.ratio_threshold; 0 is normal. Epochs below "
            "ppo_epochs: target_kl stopped them.",
            queries=[q("ppo/skipped_updates", "skipped updates"), q("ppo/epochs_run", "epochs run")],
            lowest=0,
        ),
        Panel(
            title="Learning rate",
            unit="sci",
            read="Used in this step, after warm-up and schedule.",
            queries=[q("ppo/learning_rate", "policy"), q("ppo/value_learning_rate", "critic")],
            lowest=0,
        ),
        Panel(
            title="Mean advantage",
            unit="none",
            read="Whitened over the batch: near 0 unless ppo.whiten_advantages is off.",
            queries=[q("ppo/policy/advantages_mean")],
        ),
    ],
)

CRITIC = Row(
    title="Does the critic help?",
    panels=[
        Panel(
            title="Explained variance",
            unit="none",
            read="1: the critic predicts the return; 0: no better than its mean; below 0: worse. Should rise within "
            "the first tens of steps. Staying below 0 asks for a larger vf_coef or a look at the reward's range.",
            queries=[
                q("ppo/val/explained_variance", "at rollout"),
                q("ppo/val/var_explained", "over updates (TRL's)"),
            ],
            highest=1,
        ),
        Panel(
            title="Returns and values",
            unit="none",
            read="The value should follow the mean return. A value that walks away from it is a diverging critic.",
            queries=[
                q("ppo/returns/mean", "return"),
                q("ppo/val/mean", "value at rollout"),
                q("ppo/val/vpred", "value in updates"),
            ],
        ),
        Panel(
            title="Variance of returns and values",
            unit="none",
            read="A critic that sees little has a much smaller variance than the return.",
            queries=[q("ppo/returns/var", "return"), q("ppo/val/var", "value")],
            lowest=0,
        ),
    ],
)

EVALUATION = Row(
    title="Does it hold on prompts it is not trained on?",
    panels=[
        Panel(
            title="Reward, evaluated",
            unit="none",
            read="Raw reward over the evaluation prompts, mean and standard deviation, in the steps that evaluate. It "
            "should rise with the reward of training; training alone rising means memorised prompts.",
            queries=spread("eval/reward_mean", "eval/reward_std"),
            band=BAND,
        ),
        Panel(
            title="Reward components, evaluated",
            unit="none",
            read="Mean raw score of each term of the reward over the evaluation prompts.",
            queries=[Query(expr=prometheus_name("eval/reward/x_mean") + CHOSEN, legend="{{component}}")],
        ),
        Panel(
            title="KL and entropy, evaluated",
            unit="suffix: nats/seq",
            read="As in training, over the evaluation prompts. Bounded and positive; an entropy near 0 is a collapse.",
            queries=[q("eval/kl", "KL"), q("eval/entropy", "entropy")],
        ),
        Panel(
            title="Response length, evaluated",
            unit="suffix: tokens",
            read="Mean over the evaluation prompts: a drift to max_new_tokens or to nothing shows here too.",
            queries=[q("eval/responses_len_mean", "length")],
            lowest=0,
        ),
        Panel(
            title="How evaluated responses end",
            unit="percentunit",
            read="Share that ended by themselves.",
            queries=[q("eval/eos_fraction", "ended")],
            lowest=0,
            highest=1,
        ),
        Panel(
            title="Texts of the ptx term",
            unit="none",
            read="Language-model loss on the ptx texts, nats per token, and exp of it. Rising: the policy forgets "
            "what these texts are there to keep; raise the weight of the term.",
            queries=[q("ppo/loss/ptx", "loss"), q("objective/ptx_perplexity", "perplexity")],
            log_scale=True,
        ),
    ],
)

RESPONSES = Row(
    title="What does it say?",
    panels=[
        Panel(
            title="Response length",
            unit="suffix: tokens",
            read="A steady climb to max_new_tokens, or a fall to a few tokens, is how many runs collapse while the "
            "reward still looks fine.",
            queries=spread("tokens/responses_len_mean", "tokens/responses_len_std"),
            band=BAND,
        ),
        Panel(
            title="How responses end",
            unit="percentunit",
            read="Ended by themselves, or cut by max_new_tokens.",
            queries=[q("tokens/eos_fraction", "ended"), q("tokens/truncated_fraction", "cut")],
            lowest=0,
            highest=1,
        ),
        Panel(
            title="Prompt length",
            unit="suffix: tokens",
            read="The prompts that were drawn: changes of the data, not of the policy.",
            queries=spread("tokens/queries_len_mean", "tokens/queries_len_std"),
            band=BAND,
        ),
    ],
)

PHASES = [metric.key for metric in METRICS if metric.kind is Kind.SCALAR and metric.key.startswith("time/ppo/")]

COST = Row(
    title="What does it cost?",
    panels=[
        Panel(
            title="Time of a step by phase",
            unit="s",
            read="Where a step's time goes: the sum is the step. Generation (rollout) and the updates (optimize_step) "
            "are normally the two large ones.",
            queries=[q(key, key.removeprefix("time/ppo/")) for key in PHASES if key != "time/ppo/total"],
            stacked=True,
        ),
        Panel(
            title="Time of a step",
            unit="s",
            read="A step that grows at constant length of responses: memory pressure, or another job on the machine.",
            queries=[q("time/ppo/total", "step")],
            lowest=0,
        ),
        Panel(
            title="Throughput",
            unit="suffix: tokens/s",
            read="Response tokens per second of the whole step.",
            queries=[q("tokens/per_second", "tokens per second")],
            lowest=0,
        ),
        Panel(
            title="Peak memory",
            unit="bytes",
            read="Of the device on CUDA, of the process on CPU. Near the limit: lower ppo.microbatch_size, which "
            "changes no number.",
            queries=[q("memory/peak_bytes", "peak")],
            lowest=0,
        ),
    ],
)

DASHBOARD = Dashboard(
    uid="ppo-run",
    title="PPO: one run",
    description="Numbers of one running job, from /metrics/jobs. Series end with the job; the whole history is in the "
    "API and in TensorBoard.",
    variables=[
        variable("name", "Job name", "label_values(ppo_job_info, name)"),
        variable("job_id", "Job", 'label_values(ppo_job_info{name="$name"}, job_id)'),
    ],
    rows=[LEARNING, EVALUATION, ITSELF, UPDATE, CRITIC, RESPONSES, COST],
)

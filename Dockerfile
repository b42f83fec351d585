# Brokers and Spark jobs of this package, for the profile `spark` of compose.yaml: pinned packages, the connector's jars
# by checksum, no root at run time.
# A tag may be moved by whoever publishes it; packages and jars below are held by hash, this image is not. A digest was not written
# down, since none was checked: `docker buildx imagetools inspect python:3.11-slim-bookworm` tells it, for NAME:TAG@sha256:... in both stages.
FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/statechannel
ENV PATH=/opt/statechannel/bin:$PATH
WORKDIR /src
# Packages first: they change seldom, and take longest.
COPY requirements requirements
RUN pip install --no-deps --require-hashes -r requirements/runtime.txt -r requirements/build.txt -r requirements/spark.txt
COPY pyproject.toml README.md LICENSE ./
COPY statechannel statechannel
COPY loaddata loaddata
COPY shedders shedders
COPY spark spark
RUN pip install --no-deps --no-build-isolation --no-index .
# Without this variable the jars would lie in the home of whoever builds.
ENV STATECHANNEL_CACHE_DIR=/opt/jars
RUN mkdir -p "$STATECHANNEL_CACHE_DIR" && python -m spark.jars

FROM python:3.11-slim-bookworm
# Folders of /data: a new volume takes its owner from the folder that it is put over.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home --uid 10001 statechannel \
    && mkdir -p /data/channel /data/load \
    && chown -R statechannel /data
COPY --from=build /opt/statechannel /opt/statechannel
COPY --from=build /opt/jars/spark-kafka-4.2.0 /opt/spark-kafka
ENV PATH=/opt/statechannel/bin:$PATH STATECHANNEL_SPARK_JARS=/opt/spark-kafka PYTHONUNBUFFERED=1
USER statechannel
WORKDIR /data
ENTRYPOINT ["statechannel"]
CMD ["spark", "list"]

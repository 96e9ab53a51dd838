# One image, two commands: `serve` (with a worker beside it, unless PARAPLAN_EMBEDDED_WORKER=false) and `worker`.
FROM python:3.11-slim AS packages
COPY requirements.lock .
RUN python -m venv /opt/venv \
 && /opt/venv/bin/python -m pip install --no-cache-dir --require-hashes --requirement requirements.lock

FROM python:3.11-slim
RUN useradd --system --create-home --home-dir /srv/paraplan paraplan \
 && install --directory --owner=paraplan /srv/paraplan/data
COPY --from=packages /opt/venv /opt/venv
WORKDIR /srv/paraplan
COPY migrations migrations
COPY examples examples
COPY cost_models cost_models
COPY search search
COPY app app
ENV PATH=/opt/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PARAPLAN_LOG_FORMAT=json
USER paraplan
VOLUME /srv/paraplan/data
EXPOSE 8000
# Both end cleanly on it: the server finishes its requests, the worker gives its search back.
STOPSIGNAL SIGINT
# Before the first start: `migrate`, and `create-key NAME`, without which it refuses to listen to the network.
ENTRYPOINT ["python", "-m", "app"]
CMD ["serve", "--host", "0.0.0.0"]

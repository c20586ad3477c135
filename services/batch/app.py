"""The Celery application of this environment, for Celery's own commands and for Flower.

celery -A headway.services.batch.app inspect active
celery -A headway.services.batch.app flower
"""

from __future__ import annotations

import os

from headway.services.batch.celery_app import make_app
from headway.services.batch.settings import BatchSettings, default_files
from headway.services.settings import DEFAULT_REDIS_URL

app, _ = make_app(
    BatchSettings(
        redis_url=os.environ.get("HEADWAY_REDIS_URL", DEFAULT_REDIS_URL),
        broker_url=os.environ.get("HEADWAY_BROKER_URL") or None,
        files=os.environ.get("HEADWAY_FILES") or default_files(),
        allows_private_webhooks=os.environ.get("HEADWAY_WEBHOOK_ALLOW_PRIVATE", "") in {"1", "true"},
    )
)

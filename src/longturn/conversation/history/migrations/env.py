"""What Alembic runs: the missing steps, over the connection and in the transaction that it is given."""

from alembic import context

from longturn.conversation.history.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
context.run_migrations()

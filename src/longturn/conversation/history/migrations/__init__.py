"""How the tables of the history came to be, step by step; Alembic runs what a database lacks."""

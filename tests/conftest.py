"""What all tests share."""

from hypothesis import settings

# How long one example takes says more about the machine than about the code.
settings.register_profile("longturn", deadline=None)
settings.load_profile("longturn")

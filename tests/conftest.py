"""What all tests share."""

import signal

from hypothesis import settings

# How long one example takes says more about the machine than about the code.
settings.register_profile("longturn", deadline=None)
settings.load_profile("longturn")

# Shells start what runs in the background with Ctrl-C ignored, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""What holds for every test: no progress bars, and the same hypothesis examples every time."""

import os

from hypothesis import settings

os.environ.setdefault("TQDM_DISABLE", "1")

settings.register_profile("gossipdyn", deadline=None, derandomize=True)
settings.load_profile("gossipdyn")

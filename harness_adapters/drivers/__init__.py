"""Small programs that run one rollout of an agent library, in the library's own environment.

Each is started as a script with two arguments, where to write its report and its settings as JSON, and reads the task
from standard input; ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL`` say where the model is. Nothing of
Singletree is importable there: the scripts import the library, the standard library and one another.
"""

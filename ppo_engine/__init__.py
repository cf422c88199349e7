"""PPO for language models, as a library and as a program.

The only room that may import torch. Its face (`config events stats errors rundir sources`) is torch-free and is all
that other rooms may import. It knows no job, no database, no network front end and no broker.
"""

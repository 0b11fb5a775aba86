import contextlib

import rollserve
from rollserve_server.local import local_server

stack = contextlib.ExitStack()
options = ("--env", "CartPole-v1", "--vectorization", "rows", "--backend", "in-process")
server = stack.enter_context(local_server(*options, log="server.log"))
sampler = stack.enter_context(rollserve.connect(server.address))

status = sampler.status()
agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, hidden_sizes=(64, 64), seed=0)
sampler.update_agent(agent)

batch = sampler.obtain_samples(1_000, seed=7)
print(batch)

first = batch.split()[0]
print(first.observations.shape, first.last_observations.shape, first.terminated, first.truncated)

sampler.resize(4)
again = sampler.obtain_samples(1_000, seed=7)
print((again.observations == batch.observations).all(), (again.actions == batch.actions).all())

account = again.account
print(account.num_steps, "steps,", account.num_retried_episodes, "retries,", len(account.workers), "workers")

result = sampler.evaluate(100, seed=0, deterministic=True)
print(result)

sampler.with_receipt(again, agent).save("batch.npz")

stack.close()

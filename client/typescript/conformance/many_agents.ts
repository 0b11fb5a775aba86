/** Results of calls in environments with many agents. */

import { Tensor, type AgentReturns, type AgentSteps, type EpisodeBatch, type MultiAgentBatch } from "rollserve";

import { Unsupported } from "./arguments.js";
import type { Result } from "./operations.js";
import { describeAccount, describeBatch, describeColumn, describeLeaves } from "./results.js";

/** Describe a batch and some views of it. */
export function describeMany(batch: MultiAgentBatch, views: readonly string[]): Result {
  const described = views.map((view) => {
    const describe = VIEWS[view];
    if (describe === undefined) {
      throw new Unsupported(`the view ${view}`);
    }
    return [view, describe(batch)] as const;
  });
  return { multi_agent_batch: describeManyBatch(batch), ...Object.fromEntries(described) };
}

const VIEWS: Readonly<Record<string, (batch: MultiAgentBatch) => object>> = {
  by_agent: (batch) => mapped(batch.byAgent(), (each: EpisodeBatch) => describeBatch(each)),
  joint: (batch) => mapped(batch.joint(), describeSteps),
};

function mapped<T>(values: ReadonlyMap<string, T>, describe: (value: T) => object): object {
  return Object.fromEntries([...values].map(([name, value]) => [name, describe(value)]));
}

function describeManyBatch(batch: MultiAgentBatch): object {
  const byPolicy = batch.byPolicy();
  const policies = batch.policies.map(({ policy, batch: own, agentPositions, envSteps, rewardsBefore }) => [
    policy,
    {
      ...describeBatch(byPolicy.get(policy) ?? own),
      agents: Array.from(agentPositions, (position) => batch.agents[position]),
      env_steps: [...envSteps],
      rewards_before: [...rewardsBefore],
    },
  ]);
  return {
    agents: batch.agents,
    episode_indices: Array.from(batch.episodeIndices, Number),
    first_steps: Array.from(batch.firstSteps, Number),
    lengths: [...batch.lengths],
    terminated: Array.from(batch.terminated, Boolean),
    truncated: Array.from(batch.truncated, Boolean),
    agent_step_counts: [...batch.agentStepCounts],
    global_states: batch.globalStates && describeColumn(batch.globalStates),
    last_global_states: batch.lastGlobalStates && describeColumn(batch.lastGlobalStates),
    policies: Object.fromEntries(policies) as object,
    account: describeAccount(batch.account),
  };
}

function describeSteps(steps: AgentSteps): object {
  return {
    acted: flags(steps.acted),
    observations: describeLeaves(steps.observations),
    actions: describeLeaves(steps.actions),
    rewards: { "": describeColumn(Tensor.of(steps.rewards)) },
    terminated: flags(steps.terminated),
    truncated: flags(steps.truncated),
    policy_versions: { "": describeColumn(Tensor.of(steps.policyVersions)) },
  };
}

function flags(values: Uint8Array): object {
  return { "": describeColumn(Tensor.of(values, [values.length], "bool")) };
}

/** Describe what each agent and each policy got. */
export function describeAgentReturns(returns: AgentReturns): object {
  const mean = (values: Float64Array): number => values.reduce((sum, value) => sum + value, 0) / values.length;
  const means = (values: ReadonlyMap<string, Float64Array>): object =>
    Object.fromEntries([...values].map(([name, each]) => [name, mean(each)]));
  return {
    agents: returns.agents,
    policies: returns.policies.map(({ policy, version }) => `${policy}@${String(version)}`),
    returns: [...returns.returns], // NaN is null in JSON
    policy_positions: [...returns.policyPositions],
    by_agent: means(returns.byAgent()),
    by_policy: means(returns.byPolicy()),
  };
}

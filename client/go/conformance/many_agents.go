package main

import rollserve "github.com/rollserve/rollserve/client/go"

// describeMany returns a function that describes the result of a call in an environment with many agents.
func describeMany(views []string) func(*rollserve.MultiAgentBatch, error) (object, error) {
	return func(batch *rollserve.MultiAgentBatch, err error) (object, error) {
		if err != nil {
			return nil, err
		}
		described, err := describeManyBatch(batch)
		if err != nil {
			return nil, err
		}
		result := object{"multi_agent_batch": described}
		for _, view := range views {
			describe, err := lookUp("view", view, describeViews)
			if err != nil {
				return nil, err
			}
			if result[view], err = describe(batch); err != nil {
				return nil, err
			}
		}
		return result, nil
	}
}

func describeManyBatch(batch *rollserve.MultiAgentBatch) (object, error) {
	described := object{
		"agents":            batch.Agents,
		"episode_indices":   batch.EpisodeIndices,
		"first_steps":       batch.FirstSteps,
		"lengths":           batch.Lengths,
		"terminated":        batch.Terminated,
		"truncated":         batch.Truncated,
		"agent_step_counts": batch.AgentStepCounts,
		"account":           describeAccount(batch.Account),
	}
	if !batch.GlobalStates.IsZero() {
		described["global_states"] = describeArray(batch.GlobalStates)
		described["last_global_states"] = describeArray(batch.LastGlobalStates)
	}
	byPolicy, err := batch.ByPolicy()
	if err != nil {
		return nil, err
	}
	policies := object{}
	for _, part := range batch.Policies {
		policy := describeSegments(byPolicy[part.Policy])
		agents := make([]string, len(part.AgentPositions))
		for i, position := range part.AgentPositions {
			agents[i] = batch.Agents[position]
		}
		policy["agents"], policy["env_steps"], policy["rewards_before"] = agents, part.EnvSteps, part.RewardsBefore
		policies[part.Policy] = policy
	}
	described["policies"] = policies
	return described, nil
}

var describeViews = map[string]func(*rollserve.MultiAgentBatch) (object, error){
	"by_agent": func(batch *rollserve.MultiAgentBatch) (object, error) {
		described := object{}
		byAgent, err := batch.ByAgent()
		for agent, of := range byAgent {
			described[agent] = describeSegments(of)
		}
		return described, err
	},
	"joint": func(batch *rollserve.MultiAgentBatch) (object, error) {
		described := object{}
		for agent, steps := range batch.Joint() {
			described[agent] = object{
				"acted":           describeColumn(steps.Acted),
				"observations":    describeLeaves(steps.Observations),
				"actions":         describeLeaves(steps.Actions),
				"rewards":         describeColumn(steps.Rewards),
				"terminated":      describeColumn(steps.Terminated),
				"truncated":       describeColumn(steps.Truncated),
				"policy_versions": describeColumn(steps.PolicyVersions),
			}
		}
		return described, nil
	},
}

func describeColumn[T rollserve.Element](values []T) object {
	return object{"": describeArray(rollserve.NewArray(values))}
}

func describeAgentReturns(returns *rollserve.AgentReturns) object {
	policies := make([]string, len(returns.Policies))
	for i, policy := range returns.Policies {
		policies[i] = policy.String()
	}
	byAgent, byPolicy := object{}, object{}
	for agent, of := range returns.ByAgent() {
		byAgent[agent] = mean(of)
	}
	for policy, of := range returns.ByPolicy() {
		byPolicy[policy.String()] = mean(of)
	}
	return object{
		"agents":           returns.Agents,
		"policies":         policies,
		"returns":          describeSums(returns.Returns),
		"policy_positions": returns.PolicyPositions,
		"by_agent":         byAgent,
		"by_policy":        byPolicy,
	}
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return sum / float64(len(values))
}

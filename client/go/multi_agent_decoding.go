package rollserve

import (
	"fmt"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// decodeMany returns a batch of many agents. Its arrays share the memory of the message, as those of decodeBatch.
func decodeMany(message *pb.MultiAgentBatch) (*MultiAgentBatch, error) {
	batch := &MultiAgentBatch{
		Agents:          message.GetAgents(),
		EpisodeIndices:  message.GetEpisodeIndices(),
		FirstSteps:      message.GetFirstSteps(),
		Lengths:         converted[int](message.GetLengths()),
		Terminated:      message.GetTerminated(),
		Truncated:       message.GetTruncated(),
		AgentStepCounts: converted[uint64](message.GetAgentStepCounts()),
	}
	for _, policy := range message.GetPolicies() {
		part, err := decodePolicy(policy, len(batch.Agents))
		if err != nil {
			return nil, fmt.Errorf("policies[%q].%w", policy.GetPolicy(), err)
		}
		batch.Policies = append(batch.Policies, part)
	}
	if len(batch.AgentStepCounts) == 0 {
		batch.AgentStepCounts = batch.deliveredStepCounts() // older servers do not tell the numbers
	}
	for _, header := range []struct {
		field  string
		length int
	}{
		{"episode_indices", len(batch.EpisodeIndices)}, {"first_steps", len(batch.FirstSteps)},
		{"terminated", len(batch.Terminated)}, {"truncated", len(batch.Truncated)},
		{"agent_step_counts", len(batch.AgentStepCounts)},
	} {
		if header.length != batch.Len() {
			return nil, mismatch(header.field, fmt.Sprintf("%d values", batch.Len()), header.length)
		}
	}
	return batch, batch.decodeStates(message)
}

func (b *MultiAgentBatch) decodeStates(message *pb.MultiAgentBatch) error {
	if (message.GetGlobalStates() == nil) != (message.GetLastGlobalStates() == nil) {
		return mismatch("last_global_states", "states beside global_states", "none of one of both")
	}
	if message.GetGlobalStates() == nil {
		return nil
	}
	for _, states := range []struct {
		field  string
		tensor *pb.Tensor
		to     *Array
		length int
	}{
		{"global_states", message.GetGlobalStates(), &b.GlobalStates, b.NumSteps()},
		{"last_global_states", message.GetLastGlobalStates(), &b.LastGlobalStates, b.Len()},
	} {
		array, err := decodeTensor(states.tensor, true)
		if err != nil {
			return fmt.Errorf("%s.%w", states.field, err)
		}
		if len(array.Shape) == 0 || array.Len() != states.length {
			return mismatch(states.field, fmt.Sprintf("%d states", states.length), array)
		}
		*states.to = array
	}
	return nil
}

func decodePolicy(message *pb.PolicyBatch, numAgents int) (*PolicyBatch, error) {
	batch, err := decodeBatch(message.GetBatch(), 0)
	if err != nil {
		return nil, fmt.Errorf("batch.%w", err)
	}
	part := &PolicyBatch{
		Policy:         message.GetPolicy(),
		Batch:          batch,
		AgentPositions: converted[int](message.GetAgentPositions()),
		EnvSteps:       converted[uint64](message.GetEnvironmentSteps()),
		RewardsBefore:  message.GetRewardsBefore(),
	}
	if len(part.RewardsBefore) == 0 {
		part.RewardsBefore = make([]float64, batch.Len())
	} else if !anyLater(batch.FirstSteps) { // else the returns before segments have them
		batch.ReturnsBefore = append([]float64{}, part.RewardsBefore...)
	}
	if len(part.AgentPositions) != batch.Len() {
		return nil, mismatch("agent_positions", fmt.Sprintf("%d values", batch.Len()), len(part.AgentPositions))
	}
	for _, position := range part.AgentPositions {
		if position >= numAgents {
			return nil, mismatch("agent_positions", fmt.Sprintf("positions among %d agents", numAgents), position)
		}
	}
	if len(part.EnvSteps) != batch.NumSteps() {
		return nil, mismatch("environment_steps", fmt.Sprintf("%d values", batch.NumSteps()), len(part.EnvSteps))
	}
	if len(part.RewardsBefore) != batch.Len() {
		expected := fmt.Sprintf("%d values, or none", batch.Len())
		return nil, mismatch("rewards_before", expected, len(part.RewardsBefore))
	}
	return part, nil
}

// deliveredStepCounts returns the numbers of the agents' steps of each episode that are delivered.
func (b *MultiAgentBatch) deliveredStepCounts() []uint64 {
	counts, parts := make([]uint64, b.Len()), map[uint64]int{}
	for part, index := range b.EpisodeIndices {
		parts[index] = part
	}
	for _, policy := range b.Policies {
		for segment, length := range policy.Batch.Lengths {
			if part, known := parts[policy.Batch.EpisodeIndices[segment]]; known {
				counts[part] += uint64(length)
			}
		}
	}
	return counts
}

func anyLater(firstSteps []uint64) bool {
	for _, step := range firstSteps {
		if step > 0 {
			return true
		}
	}
	return false
}

func converted[T int | uint64, N uint32 | uint64 | int32](values []N) []T {
	numbers := make([]T, len(values))
	for i, value := range values {
		numbers[i] = T(value)
	}
	return numbers
}

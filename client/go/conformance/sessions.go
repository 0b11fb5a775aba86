package main

import (
	"context"
	"encoding/json"

	rollserve "github.com/rollserve/rollserve/client/go"
)

// sessionOperation is an operation of a session.
type sessionOperation struct {
	Do         string
	Actions    arrays
	AgentInfos arrays `json:"agent_infos"`
}

func drive(ctx context.Context, c *client, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	infos, err := o.AgentInfos.decoded()
	if err != nil {
		return nil, err
	}
	session, err := c.Drive(ctx, &rollserve.DriveOptions{
		Seed: options.Seed, MaxEpisodeLength: options.MaxEpisodeLength, EnvVersion: options.EnvVersion,
		FragmentLength: o.FragmentLength, AgentInfos: infos, ReturnInfos: o.Infos,
		Blackhole: o.Record != nil && !*o.Record,
	})
	if err != nil {
		return nil, err
	}
	defer session.Close()
	results := make([]object, len(o.Operations))
	for i, content := range o.Operations {
		result, err := performIn(session, o.NextStep, content)
		if err != nil {
			result = describeError(err)
		}
		results[i] = result
	}
	return object{"results": results}, nil
}

// performIn performs an operation of a session, and describes its result.
func performIn(session *rollserve.Session, nextStep bool, content json.RawMessage) (object, error) {
	var o sessionOperation
	if err := decode(content, &o); err != nil {
		return nil, err
	}
	switch o.Do {
	case "observe":
		return describeStep(session.Observe())
	case "step":
		return act(session, nextStep, &o)
	case "batch":
		batch, err := session.Batch()
		if err != nil {
			return nil, err
		}
		return object{"batch": describeSegments(batch)}, nil
	case "end":
		account, err := session.End()
		if err != nil {
			return nil, err
		}
		return object{"account": describeAccount(account)}, nil
	default:
		return nil, unsupported("the session's operation " + o.Do)
	}
}

func act(session *rollserve.Session, nextStep bool, o *sessionOperation) (object, error) {
	actions, err := o.Actions.decoded()
	if err != nil {
		return nil, err
	}
	infos, err := o.AgentInfos.decoded()
	if err != nil {
		return nil, err
	}
	options := &rollserve.StepOptions{AgentInfos: infos}
	if nextStep {
		before, err := session.Observe()
		if err != nil {
			return nil, err
		}
		options.Idle = before.Ended()
	}
	return describeStep(session.Step(actions, options))
}

func describeStep(step *rollserve.DrivenStep, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"step": object{
		"number":            step.Number,
		"episode_indices":   step.EpisodeIndices,
		"env_seeds":         step.EnvSeeds,
		"terminated":        step.Terminated,
		"truncated":         step.Truncated,
		"ended_rows":        step.EndedRows,
		"rewards":           object{"": describeArray(rollserve.NewArray(step.Rewards))},
		"observations":      describeLeaves(step.Observations),
		"last_observations": describeLeaves(step.LastObservations),
		"infos":             describeInfos(step.Infos),
		"last_infos":        describeInfos(step.LastInfos),
	}}, nil
}

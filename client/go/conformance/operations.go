package main

import (
	"context"
	"encoding/json"
	"io"
	"time"

	rollserve "github.com/rollserve/rollserve/client/go"
)

// operation is what the client is to do, with the fields of all kinds of operations.
type operation struct {
	Do string

	ID            string
	Kwargs        map[string]any
	Wrappers      []rollserve.Wrapper
	Task          *rollserve.Task
	ResetOptions  map[string]any `json:"reset_options"`
	Vectorization rollserve.Vectorization
	NumRows       int `json:"num_rows"`
	Transforms    []map[string]json.RawMessage
	MultiAgent    rollserve.MultiAgentAPI `json:"multi_agent"`
	GlobalState   bool                    `json:"global_state"`

	Updates            []json.RawMessage // the fields of updates for all workers, or null
	Method             string
	Arguments          []any
	EnvironmentVersion *int64 `json:"environment_version"`

	agentUpdate
	SkipIfIdentical bool `json:"skip_if_identical"`

	NumSteps             int     `json:"num_steps"`
	NumEpisodesPerWorker int     `json:"num_episodes_per_worker"`
	RowStepCount         *uint64 `json:"row_step_count"`
	SoftHorizon          bool    `json:"soft_horizon"`
	StopAfter            int     `json:"stop_after"`
	Progress             bool
	NumEpisodes          int `json:"num_episodes"`
	Options              options
	Views                []string

	FragmentLength int               `json:"fragment_length"`
	AgentInfos     arrays            `json:"agent_infos"`
	Infos          bool              // whether steps of sessions have the environments'
	Record         *bool             // whether sessions are recorded; nil for the default
	NextStep       bool              `json:"next_step"`
	Operations     []json.RawMessage // of a session
	MinReady       int               `json:"min_ready"`
	LeaseSeconds   float64           `json:"lease_seconds"`
	PolicyMaps     []policyMap       `json:"policy_maps"`
}

// client is the sampler of a case, whether its environment has many agents, whose calls are others, and its warnings.
type client struct {
	*rollserve.Sampler
	hasManyAgents bool
	warnings      []string // of the server, since the case began
}

// perform performs an operation, and describes its result.
func perform(ctx context.Context, c *client, content json.RawMessage) (object, error) {
	var o operation
	if err := decode(content, &o); err != nil {
		return nil, err
	}
	run, err := lookUp("do", o.Do, operations)
	if err != nil {
		return nil, err
	}
	return run(ctx, c, &o)
}

var operations = map[string]func(context.Context, *client, *operation) (object, error){
	"update_env":              updateEnv,
	"change_env":              changeEnv,
	"update_env_per_worker":   updateEnvPerWorker,
	"call_environments":       callEnvironments,
	"update_agent":            updateAgent,
	"change_agent":            changeAgent,
	"update_agent_per_worker": updateAgentPerWorker,
	"update_policies":         updateAgent,
	"obtain_samples":          obtainSamples,
	"obtain_exact_episodes":   obtainExactEpisodes,
	"obtain_fragments":        obtainFragments,
	"stream_samples":          streamSamples,
	"drive":                   drive,
	"evaluate":                evaluate,
	"status":                  status,
	"warnings":                warnings,
}

func updateEnv(ctx context.Context, c *client, o *operation) (object, error) {
	spec, err := o.spec()
	if err != nil {
		return nil, err
	}
	updated, err := c.UpdateEnv(ctx, spec)
	if err == nil {
		c.hasManyAgents = len(updated.Agents) > 0
	}
	return describeEnv(updated, err)
}

func (o *operation) spec() (spec rollserve.EnvSpec, err error) {
	spec = rollserve.EnvSpec{
		ID: o.ID, Kwargs: o.Kwargs, Wrappers: o.Wrappers, Task: o.Task, ResetOptions: o.ResetOptions,
		Vectorization: o.Vectorization, NumRows: o.NumRows, MultiAgent: o.MultiAgent, GlobalState: o.GlobalState,
	}
	for _, kinds := range o.Transforms {
		for name, content := range kinds {
			read, err := lookUp("transform", name, transforms)
			if err != nil {
				return spec, err
			}
			transform, err := read(content)
			if err != nil {
				return spec, err
			}
			spec.Transforms = append(spec.Transforms, transform)
		}
	}
	return spec, nil
}

func updateEnvPerWorker(ctx context.Context, c *client, o *operation) (object, error) {
	updates := make([]rollserve.EnvUpdate, len(o.Updates))
	for i, content := range o.Updates {
		if string(content) == "null" {
			continue
		}
		var each operation
		if err := decode(content, &each); err != nil {
			return nil, err
		}
		updates[i] = rollserve.EnvChange{Kwargs: each.Kwargs}
		if each.ID != "" {
			spec, err := each.spec()
			if err != nil {
				return nil, err
			}
			updates[i] = spec
		}
	}
	return describeEnv(c.UpdateEnvPerWorker(ctx, updates))
}

func callEnvironments(ctx context.Context, c *client, o *operation) (object, error) {
	options := &rollserve.CallEnvironmentsOptions{EnvVersion: o.EnvironmentVersion}
	values, err := c.CallEnvironments(ctx, o.Method, o.Arguments, options)
	if err != nil {
		return nil, err
	}
	return object{"values": values}, nil
}

func changeEnv(ctx context.Context, c *client, o *operation) (object, error) {
	return describeEnv(c.UpdateEnv(ctx, rollserve.EnvChange{Kwargs: o.Kwargs}))
}

func describeEnv(updated *rollserve.EnvUpdated, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"environment_version": updated.EnvVersion}, nil
}

func updateAgent(ctx context.Context, c *client, o *operation) (object, error) {
	update, err := o.agentUpdate.update()
	if err != nil {
		return nil, err
	}
	options := &rollserve.UpdateAgentOptions{SkipIfIdentical: o.SkipIfIdentical}
	return describeAgent(c.UpdateAgent(ctx, update, options))
}

func changeAgent(ctx context.Context, c *client, o *operation) (object, error) {
	parameters, err := o.Parameters.decoded()
	if err != nil {
		return nil, err
	}
	return describeAgent(c.UpdateAgent(ctx, rollserve.AgentChange{Kwargs: o.Kwargs, Parameters: parameters}, nil))
}

func updateAgentPerWorker(ctx context.Context, c *client, o *operation) (object, error) {
	updates := make([]rollserve.AgentUpdate, len(o.Updates))
	for i, content := range o.Updates {
		if string(content) == "null" {
			continue
		}
		var each agentUpdate
		if err := decode(content, &each); err != nil {
			return nil, err
		}
		var err error
		if updates[i], err = each.update(); err != nil {
			return nil, err
		}
	}
	return describeAgent(c.UpdateAgentPerWorker(ctx, updates, nil))
}

func describeAgent(version int64, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"policy_version": version}, nil
}

func obtainSamples(ctx context.Context, c *client, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	if c.hasManyAgents {
		return describeMany(o.Views)(c.MultiAgent().ObtainSamples(ctx, o.NumSteps, options))
	}
	begin := time.Now()
	batch, err := c.ObtainSamples(ctx, o.NumSteps, options)
	seconds := time.Since(begin).Seconds()
	if err != nil {
		return nil, err
	}
	return object{"batch": describeBatch(batch), "seconds": seconds}, nil
}

func obtainExactEpisodes(ctx context.Context, c *client, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	if c.hasManyAgents {
		return describeMany(o.Views)(c.MultiAgent().ObtainExactEpisodes(ctx, o.NumEpisodesPerWorker, options))
	}
	return describeResult(c.ObtainExactEpisodes(ctx, o.NumEpisodesPerWorker, options))
}

func obtainFragments(ctx context.Context, c *client, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	of := &rollserve.FragmentOptions{
		SamplingOptions: *options, RowStepCount: o.RowStepCount, SoftHorizon: o.SoftHorizon,
	}
	if c.hasManyAgents {
		return describeMany(o.Views)(c.MultiAgent().ObtainFragments(ctx, o.NumSteps, of))
	}
	return describeResult(c.ObtainFragments(ctx, o.NumSteps, of))
}

func describeResult(batch *rollserve.EpisodeBatch, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"batch": describeBatch(batch)}, nil
}

// streamSamples reads a stream to its end, or closes it after some batches.
func streamSamples(ctx context.Context, c *client, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	if c.hasManyAgents {
		stream, err := c.MultiAgent().StreamSamples(ctx, o.NumSteps, options)
		if err != nil {
			return nil, err
		}
		return readStream[*rollserve.MultiAgentBatch](stream, o)
	}
	stream, err := c.StreamSamples(ctx, o.NumSteps, options)
	if err != nil {
		return nil, err
	}
	return readStream[*rollserve.EpisodeBatch](stream, o)
}

// stream is a stream of batches of one agent or of many.
type stream[B any] interface {
	Next() (B, error)
	Close()
	NumSimulatedSteps() int64
	NumEndedEpisodes() int64
}

func readStream[B interface{ NumSteps() int }](stream stream[B], o *operation) (object, error) {
	defer stream.Close()
	numBatches, numSteps := 0, 0
	for o.StopAfter == 0 || numBatches < o.StopAfter {
		batch, err := stream.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		numBatches++
		numSteps += batch.NumSteps()
	}
	result := object{"num_batches": numBatches, "num_steps": numSteps}
	if o.Progress {
		result["progress"] = object{
			"num_simulated_steps": stream.NumSimulatedSteps(), "num_ended_episodes": stream.NumEndedEpisodes(),
		}
	}
	return result, nil
}

func evaluate(ctx context.Context, c *client, o *operation) (object, error) {
	options, err := o.Options.evaluation()
	if err != nil {
		return nil, err
	}
	for _, rules := range o.PolicyMaps {
		options.PolicyMaps = append(options.PolicyMaps, rules.rules())
	}
	evaluation, err := c.Evaluate(ctx, o.NumEpisodes, options)
	if err != nil {
		return nil, err
	}
	result := object{"returns": evaluation.Returns, "lengths": evaluation.Lengths}
	if evaluation.AgentReturns != nil {
		result["agent_returns"] = describeAgentReturns(evaluation.AgentReturns)
	}
	return result, nil
}

func status(ctx context.Context, c *client, _ *operation) (object, error) {
	status, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	return object{
		"policy_version":      status.PolicyVersion,
		"environment_version": status.EnvVersion,
		"num_workers":         status.NumWorkers(),
	}, nil
}

func warnings(_ context.Context, c *client, _ *operation) (object, error) {
	return object{"warnings": c.warnings}, nil
}

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
	Vectorization string
	NumRows       uint32 `json:"num_rows"`
	Transforms    []map[string]json.RawMessage

	Updates            []json.RawMessage // the fields of updates for all workers, or null
	Method             string
	Arguments          []any
	EnvironmentVersion *int64 `json:"environment_version"`

	agentUpdate
	SkipIfIdentical bool `json:"skip_if_identical"`

	NumSteps             int64   `json:"num_steps"`
	NumEpisodesPerWorker int64   `json:"num_episodes_per_worker"`
	RowStepCount         *uint64 `json:"row_step_count"`
	SoftHorizon          bool    `json:"soft_horizon"`
	StopAfter            int     `json:"stop_after"`
	Progress             bool
	NumEpisodes          uint32 `json:"num_episodes"`
	Options              options
}

// perform performs an operation, and describes its result.
func perform(ctx context.Context, sampler *rollserve.Sampler, content json.RawMessage) (object, error) {
	var o operation
	if err := decode(content, &o); err != nil {
		return nil, err
	}
	run, err := lookUp("do", o.Do, operations)
	if err != nil {
		return nil, err
	}
	return run(ctx, sampler, &o)
}

var operations = map[string]func(context.Context, *rollserve.Sampler, *operation) (object, error){
	"update_env":              updateEnv,
	"change_env":              changeEnv,
	"update_env_per_worker":   updateEnvPerWorker,
	"call_environments":       callEnvironments,
	"update_agent":            updateAgent,
	"change_agent":            changeAgent,
	"update_agent_per_worker": updateAgentPerWorker,
	"obtain_samples":          obtainSamples,
	"obtain_exact_episodes":   obtainExactEpisodes,
	"obtain_fragments":        obtainFragments,
	"stream_samples":          streamSamples,
	"evaluate":                evaluate,
	"status":                  status,
}

func updateEnv(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	spec, err := o.spec()
	if err != nil {
		return nil, err
	}
	return describeEnv(sampler.UpdateEnv(ctx, spec))
}

func (o *operation) spec() (spec rollserve.EnvSpec, err error) {
	vectorization, err := lookUp("vectorization", o.Vectorization, vectorizations)
	if err != nil {
		return spec, err
	}
	spec = rollserve.EnvSpec{
		ID: o.ID, Kwargs: o.Kwargs, Wrappers: o.Wrappers, Task: o.Task, ResetOptions: o.ResetOptions,
		Vectorization: vectorization, NumRows: o.NumRows,
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

func updateEnvPerWorker(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
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
	return describeEnv(sampler.UpdateEnvPerWorker(ctx, updates))
}

func callEnvironments(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	options := &rollserve.CallEnvironmentsOptions{EnvVersion: o.EnvironmentVersion}
	values, err := sampler.CallEnvironments(ctx, o.Method, o.Arguments, options)
	if err != nil {
		return nil, err
	}
	return object{"values": values}, nil
}

var vectorizations = map[string]rollserve.Vectorization{
	"":       0,
	"rows":   rollserve.VectorizationRows,
	"native": rollserve.VectorizationNative,
}

func changeEnv(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	return describeEnv(sampler.UpdateEnv(ctx, rollserve.EnvChange{Kwargs: o.Kwargs}))
}

func describeEnv(updated *rollserve.EnvUpdated, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"environment_version": updated.EnvVersion}, nil
}

func updateAgent(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	update, err := o.agentUpdate.update()
	if err != nil {
		return nil, err
	}
	options := &rollserve.UpdateAgentOptions{SkipIfIdentical: o.SkipIfIdentical}
	return describeAgent(sampler.UpdateAgent(ctx, update, options))
}

func changeAgent(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	parameters, err := o.Parameters.decoded()
	if err != nil {
		return nil, err
	}
	return describeAgent(sampler.UpdateAgent(ctx, rollserve.AgentChange{Kwargs: o.Kwargs, Parameters: parameters}, nil))
}

func updateAgentPerWorker(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
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
	return describeAgent(sampler.UpdateAgentPerWorker(ctx, updates, nil))
}

func describeAgent(version int64, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"policy_version": version}, nil
}

func obtainSamples(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	batch, err := sampler.ObtainSamples(ctx, o.NumSteps, options)
	seconds := time.Since(begin).Seconds()
	if err != nil {
		return nil, err
	}
	return object{"batch": describeBatch(batch), "seconds": seconds}, nil
}

func obtainExactEpisodes(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	return describeResult(sampler.ObtainExactEpisodes(ctx, o.NumEpisodesPerWorker, options))
}

func obtainFragments(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	return describeResult(sampler.ObtainFragments(ctx, o.NumSteps, &rollserve.FragmentOptions{
		SamplingOptions: *options, RowStepCount: o.RowStepCount, SoftHorizon: o.SoftHorizon,
	}))
}

func describeResult(batch *rollserve.EpisodeBatch, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	return object{"batch": describeBatch(batch)}, nil
}

// streamSamples reads a stream to its end, or closes it after some batches.
func streamSamples(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	options, err := o.Options.sampling()
	if err != nil {
		return nil, err
	}
	stream, err := sampler.StreamSamples(ctx, o.NumSteps, options)
	if err != nil {
		return nil, err
	}
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

func evaluate(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	options, err := o.Options.evaluation()
	if err != nil {
		return nil, err
	}
	evaluation, err := sampler.Evaluate(ctx, o.NumEpisodes, options)
	if err != nil {
		return nil, err
	}
	return object{"returns": evaluation.GetReturns(), "lengths": evaluation.GetLengths()}, nil
}

func status(ctx context.Context, sampler *rollserve.Sampler, _ *operation) (object, error) {
	status, err := sampler.Status(ctx)
	if err != nil {
		return nil, err
	}
	return object{
		"policy_version":      status.GetPolicyVersion(),
		"environment_version": status.GetEnvironmentVersion(),
		"num_workers":         status.NumWorkers(),
	}, nil
}

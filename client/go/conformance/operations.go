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

	agentUpdate
	SkipIfIdentical bool `json:"skip_if_identical"`

	NumSteps             int64   `json:"num_steps"`
	NumEpisodesPerWorker int64   `json:"num_episodes_per_worker"`
	RowStepCount         *uint64 `json:"row_step_count"`
	SoftHorizon          bool    `json:"soft_horizon"`
	StopAfter            int     `json:"stop_after"`
	NumEpisodes          uint32  `json:"num_episodes"`
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
	"update_env":            updateEnv,
	"change_env":            changeEnv,
	"update_agent":          updateAgent,
	"obtain_samples":        obtainSamples,
	"obtain_exact_episodes": obtainExactEpisodes,
	"obtain_fragments":      obtainFragments,
	"stream_samples":        streamSamples,
	"evaluate":              evaluate,
	"status":                status,
}

func updateEnv(ctx context.Context, sampler *rollserve.Sampler, o *operation) (object, error) {
	vectorization, err := lookUp("vectorization", o.Vectorization, vectorizations)
	if err != nil {
		return nil, err
	}
	return describeEnv(sampler.UpdateEnv(ctx, rollserve.EnvSpec{
		ID: o.ID, Kwargs: o.Kwargs, Wrappers: o.Wrappers, Task: o.Task, ResetOptions: o.ResetOptions,
		Vectorization: vectorization, NumRows: o.NumRows,
	}))
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
	version, err := sampler.UpdateAgent(ctx, update, options)
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
	return object{"num_batches": numBatches, "num_steps": numSteps}, nil
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

// Package rollserve is the Go client of Rollserve: it sends agents and environments to a server, and receives finished
// episodes as flat slices.
//
//	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{})
//	if err != nil { … }
//	defer sampler.Close()
//	version, err := sampler.UpdateAgent(ctx, rollserve.RandomAgent{}, nil)
//	batch, err := sampler.ObtainSamples(ctx, 10_000, nil)
//	observations, err := rollserve.Values[float32](batch.Observations[""])
//
// Package rollservev1 has the messages of the wire contract, whose comments say what every option means.
package rollserve

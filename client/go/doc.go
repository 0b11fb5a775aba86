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
// Calls fail with an Error, whose kind errors.Is tells. Options may be nil, and zero values of their fields are the
// defaults; an option for which 0 is another value than the default is a pointer, which Some makes.
//
// Package rollservev1 has the messages of the wire contract, which Sampler.Service sends. Their comments say more about
// each option. No other part of this package's API has types of that one.
package rollserve

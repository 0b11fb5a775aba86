//go:build go1.23

package rollserve

import (
	"io"
	"iter"
)

// All returns an iterator over the rest of the batches, for a range loop. An error ends it, as its last pair:
//
//	for part, err := range stream.All() {
//		if err != nil { … }
//		fmt.Println(part.NumSteps())
//	}
//
// A loop that ends early leaves the rest to Next, Join or another loop; Close cancels it.
func (s *Stream) All() iter.Seq2[*EpisodeBatch, error] { return batches(s.Next) }

// All returns an iterator over the rest of the batches, as Stream.All does.
func (s *MultiAgentStream) All() iter.Seq2[*MultiAgentBatch, error] { return batches(s.Next) }

func batches[B any](next func() (B, error)) iter.Seq2[B, error] {
	return func(yield func(B, error) bool) {
		for {
			batch, err := next()
			if err == io.EOF || !yield(batch, err) || err != nil {
				return
			}
		}
	}
}

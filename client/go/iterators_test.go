//go:build go1.23

package rollserve_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"google.golang.org/grpc/codes"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

func TestLoopsOverStreamsCanEndEarlyAndGoOn(t *testing.T) {
	server := &script{calls: []scripted{{responses: []*pb.ObtainSamplesResponse{
		beginning(), batchOf(segments([4]int{4, 0, 1, 1})), batchOf(segments([4]int{5, 0, 2, 1})),
		batchOf(segments([4]int{6, 0, 3, 1})), account(3, 6),
	}}}}
	stream, err := server.connect(t, rollserve.Config{}).StreamSamples(context.Background(), 6, nil)
	fatal(t, err)
	defer stream.Close()
	var lengths []int
	for part, err := range stream.All() {
		fatal(t, err)
		lengths = append(lengths, part.Lengths...)
		break
	}
	for part, err := range stream.All() {
		fatal(t, err)
		lengths = append(lengths, part.Lengths...)
	}
	same(t, "lengths", lengths, []int{1, 2, 3})
	total, err := stream.Account()
	fatal(t, err)
	same(t, "steps", total.NumSteps, int64(6))
}

func TestErrorsEndLoopsOverStreams(t *testing.T) {
	server := &script{calls: []scripted{
		{responses: []*pb.ObtainSamplesResponse{beginning(), firstPart()}, err: failure(codes.Internal, "ENV_FAILED", "")},
	}}
	stream, err := server.connect(t, rollserve.Config{}).MultiAgent().StreamSamples(context.Background(), 5, nil)
	fatal(t, err)
	defer stream.Close()
	var errs []error
	for part, err := range stream.All() {
		same(t, "either a batch or an error", part == nil, err != nil)
		errs = append(errs, err)
	}
	same(t, "number of pairs", len(errs), 2)
	same(t, "error", errors.Is(errs[1], rollserve.ErrServer), true)
}

func ExampleStream_All() {
	ctx := context.Background()
	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sampler.Close()
	stream, err := sampler.StreamSamples(ctx, 10_000, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	for part, err := range stream.All() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(part.NumSteps())
	}
}

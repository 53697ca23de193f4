#!/bin/sh
# Makes the namespace of Errand in Temporal where it is missing. errandd creates its search attributes by itself.
set -eu
namespace=errand
tries=30
until temporal operator cluster health; do
	tries=$((tries - 1))
	[ "$tries" -gt 0 ] || { echo "Temporal does not serve" >&2; exit 1; }
	sleep 2
done
temporal operator namespace describe --namespace "$namespace" >/dev/null 2>&1 ||
	temporal operator namespace create --namespace "$namespace" --retention 720h

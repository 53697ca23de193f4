// Package webhook reads deliveries: it decides whether a request was signed by a holder of a webhook's secret, under
// which names the same delivery is recognised when it comes again, and what input its run gets.
//
// Three schemes are known: standard (Standard Webhooks), github (X-Hub-Signature-256) and hmac, whose headers its
// author names. All of them are HMAC-SHA256 over the bytes of the body as they came. A request is hostile until it
// is verified: nothing in it makes the work larger than its size, no part of it is trusted before, and the work of
// a refusal does not depend on its reason. The package is pure: callers hand in the time, and the secrets in the
// clear; where deliveries are received, remembered and admitted is left to others.
package webhook

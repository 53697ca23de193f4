package strictjson

import "strings"

// nearest returns the name that was probably meant, or "".
func nearest(name string, known []string) string {
	const longest = 64 // no member of ours comes near, and the search is quadratic
	if len(name) > longest {
		return ""
	}
	best, bestDistance := "", 1+max(1, len(name)/3)
	for _, k := range known {
		d := distance(strings.ToLower(name), strings.ToLower(k))
		if d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is the number of bytes to insert, remove, replace or swap with the next one to turn a into b.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

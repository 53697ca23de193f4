package storetest

var scheduleChangeTests = []test{}

var scheduleRaceTests = []test{}

package process

// CgroupDir lets the tests read texts of other systems.
var CgroupDir = cgroupDir

package schedule_test
import ("testing";"fmt";"github.com/errandhq/errand/automation/schedule")
func TestZZ(t *testing.T){
 now:=at(t,"2026-12-01T10:30:15.5Z")
 for _,z:=range []string{"Europe/Berlin"} { for _,c:=range []string{"* * * * *","0 9 * * 1-5","*/15 * * * *","*/45 * * * *","30 * * * *","0 */2 * * *","30 */2 * * *","0 9-17 * * *","*/5 9-17 * * MON-FRI","0 9,12,18 * * *","0 0 1,15 * *","0 0 L * *","30 8 * * MON#1","0 17 * * FRIL","0 9 1-7 * MON","0 0 */2 * 3","0 0 1-31 * 4","0 12 25 12 *","5/20 3,5,9,11 * * 6,0","0 0 * 6 *","*/15 * * 6-8 *","0 9 29 2 *","30 2 * * *","*/20 2 * * *","* 1-3 * * *","15 10 * 1,7 TUE,THU#2,FRIL","@weekly","0 0 L 6 MON","0 0 1 */3 *","* * 13 * *","0 9 * * 0-6","0 0 1/2 * *", "10-40/7 * * * *","0 0,12 * * *"} {
  tm,w,err:=schedule.Parse(schedule.Spec{Cron:c,Timezone:z},now,now); if err!=nil{fmt.Println(c,err);continue}
  fmt.Printf("%-28s %s\n",c,tm.Describe()); for _,x:=range w {fmt.Println("      ",x.Path,x.Message)}
 }}
 for _,s:=range []schedule.Spec{{Every:"90m"},{Every:"1h30m"},{Every:"24h"},{Every:"1h"},{Every:"61s"},{Every:"2h",Anchor:"2026-12-01T00:00:00Z"},{At:"2026-12-02T07:00",Timezone:"America/New_York"},{At:"2027-03-14T02:30:00",Timezone:"America/New_York"},{At:"2027-11-07T01:30",Timezone:"America/New_York"},{At:"2027-11-07T00:59",Timezone:"America/New_York"},{At:"2026-12-02T07:00:00.123+01:00"},
 {},{Timezone:"UTC"},{Cron:"* * * * *"},{Cron:"61 24 * 13 8",Timezone:"Europe/Paradise"},{Cron:"* * * * *",Every:"5m"},{Every:"5m",Timezone:"UTC"},{Every:"1500ms"},{Every:"500ms"},{Every:"5"},{Every:"7d"},{Every:"-5m"},{Every:"x",Anchor:"y"},{Anchor:"2026-12-01T00:00:00Z"},{At:"2026-12-01T10:30:15Z"},{At:"tomorrow"},{At:"2026-12-02T07:00"},{At:"2026-12-02T07:00:00Z",Timezone:"UTC"},
 {Cron:"0 9 * * *",Timezone:"Local"},{Cron:"0 9 * * *",Timezone:"europe/berlin"},{Cron:"0 9 * * *",Timezone:"America/New York"},{Cron:"0 9 * * *",Timezone:"UTC+2"},{Cron:"0 9 * * *",Timezone:"utc"},{Cron:"0 9 * * *",Timezone:"../etc"},{Cron:"0 9 * * *",Timezone:"right/UTC"}} {
  tm,w,err:=schedule.Parse(s,now,now); if err!=nil{fmt.Printf("%+v\n     %v\n",s,err);continue}
  n,_:=tm.Next(now)
  fmt.Printf("%+v %s %v\n",s,tm.Describe(),n); for _,x:=range w {fmt.Println("      ",x.Path,x.Message)}
 }
 c:=loadCases(t); for _,x:=range c.Invalid { _,_,err:=schedule.Parse(schedule.Spec{Cron:x.Cron,Timezone:"UTC"},now,now); fmt.Println(x.Cron,"|",err)}
 for _,x:=range []string{"0 9 * * FRI-MON","0 22-2 * * *","0 9 * * SAT-SUN","* * * * MONDAY","* * * JUNE *","H * * * *","0 9 LW * *","0 9 L-3 * *","0 9 * * L","0 9 * * MON-FRI#2","0 9 * * MON-FRIL","0 9 * * *L","** * * * *","1-2-3 * * * *","*-5 * * * *","5/ * * * *","5/5/5 * * * *","0 0 12 ? * MON *","0 9 * * 1 2027","0 9 * * 1 # weekly","@Daily","@daily 5","@fortnightly","@every","@every 90s"," 0 9 * * * ","0\t9 * * *","0 9 * * *\n","0 9 * * *","0 9 + * *","0 1~5 * * *","0 9 * * 0x1","0 9 * * １","99999999999999999999 * * * *","*/99999999999999999999 * * * *","*/100 * * * *"} {
 tm,w,err:=schedule.Parse(schedule.Spec{Cron:x,Timezone:"UTC"},now,now); fmt.Printf("%q | %v\n",x,err); if err==nil {fmt.Println(tm.Describe(),w)}}
}

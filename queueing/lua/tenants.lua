-- Part 14: tenants' limits and API keys. KEYS[1] is {sys}; each change makes a new version, by which others notice.

do

local RESERVING_KEPT_MS = 691200000 -- 8 days, as long as a tenant's books
local QUIET_MS = 600000
local LATEST_MS = 253402300800000 -- the year 10000, which no calendar of ours can show

-- A version that never comes again, also when a restored backup or a failover has taken changes back.
local function changed(tag, what)
  local config, time = name(tag, 'config'), redis.call('TIME')
  local count = (tonumber((redis.call('HGET', config, what) or ''):match('%d+$')) or 0) % 1000000
  redis.call('HSET', config, what, ('%d.%06d-%d'):format(time[1], time[2], count + 1))
end

local function invalid(message) return redis.error_reply('HEADWAYINVALID ' .. message) end

-- What is wrong with the keys that a change writes, before it writes anything; nil: nothing.
local function stray(tag, ...)
  for _, kind in ipairs({'config', ...}) do
    local key = name(tag, kind)
    local found = redis.call('TYPE', key).ok
    if found ~= 'hash' and found ~= 'none' then
      return invalid(key .. ' holds a ' .. found .. ', not a hash: somebody else wrote it. Remove it with `DEL ' .. key ..
        '`, and set what it had again')
    end
  end
end

-- The fields of a JSON object; nil for any other text.
local function object_of(text)
  local is_json, value = pcall(cjson.decode, text)
  if is_json and type(value) == 'table' and text:match('^%s*{') then return value end
end

local WRONG_TENANT = 'tenant: must be 1 to 64 characters out of A-Z a-z 0-9 _ . @ -'

local function is_tenant(text)
  return type(text) == 'string' and #text <= 64 and text:match('^[%w_.@-]+$') ~= nil
end

-- FCALL headway_tenant_set 1 {sys} <tenant> <JSON of fields; null takes one away> -> the whole as JSON
-- An entry that is no JSON object is replaced.
register('headway_tenant_set', function(keys, args)
  local tag, key, changes = keys[1], name(keys[1], 'tenants'), object_of(args[2] or '')
  if not is_tenant(args[1]) and args[1] ~= '*' then return invalid(WRONG_TENANT) end
  if not changes then return invalid('changes: must be a JSON object of fields') end
  local wrong = stray(tag, 'tenants')
  if wrong then return wrong end
  local limits = object_of(redis.call('HGET', key, args[1]) or '{}') or {}
  for field, value in pairs(changes) do
    limits[field] = value ~= cjson.null and value or nil
  end
  local text = next(limits) and cjson.encode(limits) or '{}'
  redis.call('HSET', key, args[1], text)
  changed(tag, 'tenants')
  return text
end)

-- FCALL headway_tenant_rm 1 {sys} <tenant> -> 1, or 0 if there was none
register('headway_tenant_rm', function(keys, args)
  if not args[1] then return invalid(WRONG_TENANT) end
  local wrong = stray(keys[1], 'tenants')
  if wrong then return wrong end
  local removed = redis.call('HDEL', name(keys[1], 'tenants'), args[1])
  if removed == 1 then changed(keys[1], 'tenants') end
  return removed
end, {'allow-oom'})

-- FCALL headway_tenants_apply 1 {sys} <digest of the file>, then <tenant> <JSON> for each in it
-- -> the tenants that changed; those that an earlier file named and this one does not are taken away. The same file
--    again changes nothing, so that what was set by hand since stays over a restart.
register('headway_tenants_apply', function(keys, args)
  local tag, key, config, touched, named = keys[1], name(keys[1], 'tenants'), name(keys[1], 'config'), {}, {}
  local wrong = args[1] and ragged(args, 2, 'tenant, JSON') or not args[1] and invalid('digest: missing')
    or stray(tag, 'tenants')
  if wrong then return wrong end
  if redis.call('HGET', config, 'file') == args[1] then return touched end
  for at = 2, #args, 2 do
    named[args[at]] = true
    if redis.call('HGET', key, args[at]) ~= args[at + 1] then
      redis.call('HSET', key, args[at], args[at + 1])
      touched[#touched + 1] = args[at]
    end
  end
  for tenant in (redis.call('HGET', config, 'named') or ''):gmatch('%S+') do
    if not named[tenant] and redis.call('HDEL', key, tenant) == 1 then touched[#touched + 1] = tenant end
  end
  local names = {}
  for tenant in pairs(named) do names[#names + 1] = tenant end
  redis.call('HSET', config, 'file', args[1], 'named', table.concat(names, ' '))
  if #touched > 0 then changed(tag, 'tenants') end
  return touched
end)

-- What is wrong with a key; nil: nothing.
local function wrong_key(digest, key)
  if not (type(digest) == 'string' and #digest == 64 and digest:match('^[0-9a-f]+$')) then
    return "key: must be the API key's SHA-256 in 64 hex digits"
  end
  if not key then return 'key: must be a JSON object of tenant, name and created_ms' end
  local tenant, created = key.tenant, key.created_ms
  if not is_tenant(tenant) then return WRONG_TENANT end
  if type(key.name) ~= 'string' then return 'name: must be a string' end
  if not (type(created) == 'number' and created >= 0 and created < LATEST_MS and created % 1 == 0) then
    return 'created_ms: must be whole milliseconds since 1970'
  end
end

-- FCALL headway_key_put 1 {sys} <sha256 of the key> <JSON of tenant, name, created_ms>
register('headway_key_put', function(keys, args)
  local wrong = wrong_key(args[1], object_of(args[2] or ''))
  if wrong then return invalid(wrong) end
  wrong = stray(keys[1], 'keys')
  if wrong then return wrong end
  redis.call('HSET', name(keys[1], 'keys'), args[1], args[2])
  changed(keys[1], 'keys')
  return 'ok'
end)

-- FCALL headway_key_rm 1 {sys} <sha256 of the key> -> 1, or 0 if there was none
register('headway_key_rm', function(keys, args)
  if not args[1] then return invalid('key: missing') end
  local wrong = stray(keys[1], 'keys')
  if wrong then return wrong end
  local removed = redis.call('HDEL', name(keys[1], 'keys'), args[1])
  if removed == 1 then changed(keys[1], 'keys') end
  return removed
end, {'allow-oom'})

-- FCALL headway_reserving 1 {sys} <tenant>: notes that the tenant may have reservations, for whoever keeps them
register('headway_reserving', function(keys, args)
  if not is_tenant(args[1]) then return invalid(WRONG_TENANT) end
  on(keys[1], 'ZADD', 'reserving', now_ms(), args[1])
  redis.call('PEXPIRE', name(keys[1], 'reserving'), RESERVING_KEPT_MS)
  return 'ok'
end)

-- FCALL headway_quiet 1 {sys} <tenant>…: these have none; those who said otherwise just now stay -> how many left
register('headway_quiet', function(keys, args)
  local before, removed = now_ms() - QUIET_MS, 0
  for _, tenant in ipairs(args) do
    local said = tonumber(on(keys[1], 'ZSCORE', 'reserving', tenant) or nil)
    if said and said < before then removed = removed + on(keys[1], 'ZREM', 'reserving', tenant) end
  end
  return removed
end, {'allow-oom'})

end
